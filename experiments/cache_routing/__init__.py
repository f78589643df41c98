"""Studies of routers that know what engines have cached, on families of sessions."""
