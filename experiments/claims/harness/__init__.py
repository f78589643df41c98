"""What the claims share: settings, cells, measures, checks, the study that runs them and the page that shows them."""
