"""The benchmarks of ``gangline bench``: each number in the documentation can be measured again with one command."""
