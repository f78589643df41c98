"""How fast schedulers lose when the device, the estimator or the lengths are not what they believe."""
