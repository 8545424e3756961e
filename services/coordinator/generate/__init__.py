"""The graphical-model estimator; the only package that may import mbi and jax. Not built yet."""
