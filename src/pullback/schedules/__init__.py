"""Loop nests: how a family of formulas is run over memory, once per backend."""
