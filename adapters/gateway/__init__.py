"""An Endpoint Picker of the Gateway API Inference Extension, which chooses engines for a gateway."""
