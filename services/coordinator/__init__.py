"""Fits the graphical model to opened DP values and publishes synthetic data. Not built yet."""
