"""What runs jobs: acquisition, execution, leases and settling, each a small service of one shape."""
