"""What is measured: one file a task."""
