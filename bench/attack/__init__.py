"""`make attack`: hostile requests to a running service, and what each costs it and its other clients."""
