"""`gateway doctor`: what this machine, the settings, the models and Triton are like, and what to do about it."""
