"""`gateway doctor`: checks of this machine, the settings, the models and Triton, with advice for each problem."""
