"""Claims and tunings that ran on old profiles, run again on devices that measured runs say more about."""
