"""Differential privacy: accounting, noise, programs, what may be asked, who enforces it, and the clear twin."""
