"""What the tests share: servers, databases and the watch over child processes."""
