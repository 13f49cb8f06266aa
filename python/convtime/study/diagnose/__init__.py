"""Why an operation takes the time that it takes: contrasts, and rules over what they show."""
