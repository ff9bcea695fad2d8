"""What callers use: functions, descriptors and plans."""
