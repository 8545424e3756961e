"""Differential privacy: accounting, noise, programs, requests and their enforcement, and the clear twin."""
