"""An Endpoint Picker of the Gateway API Inference Extension: a gateway asks it which engine gets a request."""
