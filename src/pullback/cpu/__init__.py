"""CPU schedules, compiled by Numba. Importing this package imports Numba."""
