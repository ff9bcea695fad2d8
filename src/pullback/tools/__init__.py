"""What people use: the command line, benchmarks, certificates, files."""
