"""What several plug-ins and commands use, and the core does not: JSON texts, streams, files of several processes."""
