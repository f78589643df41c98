"""What a policy is: declarations, signatures' checks, scores, gains. To write one, import servegym.policy."""
