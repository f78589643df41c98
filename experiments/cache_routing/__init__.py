"""Studies of routers that know what engines have cached: families of sessions, and a day of chat."""
