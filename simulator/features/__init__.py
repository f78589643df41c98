"""What a run may have and most have not: one file a feature. The loop without it must not pay for it."""
