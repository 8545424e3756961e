"""The three services of CaPS. None imports another; what they share lives in `caps`."""
