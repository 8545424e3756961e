"""Fits a graphical model to opened DP values and draws synthetic data from it. Never sees a share."""
