"""Commands about models and the prediction log, and commands that may add or prove a model: `up` and `doctor`."""
