"""What benchmarks and the tests beside them share."""
