"""CPU schedules, compiled by LLVM."""
