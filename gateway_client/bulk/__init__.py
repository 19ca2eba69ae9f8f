"""Any number of pictures from anywhere to one table of their classes: sources, sinks, progress, and going on."""
