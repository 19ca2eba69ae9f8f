"""What the machine or container has, and how many processes and how much memory the service may take of it."""
