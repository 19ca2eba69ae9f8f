"""From a trained model to a model repository. The only place of the package that imports torch."""
