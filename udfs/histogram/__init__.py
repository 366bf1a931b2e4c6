"""The histogram: contribution bounding by unit, then key selection and perturbation by key."""
