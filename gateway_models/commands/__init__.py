"""Commands about models and the prediction log, and those that may add or prove a model: `gateway up` and `doctor`."""
