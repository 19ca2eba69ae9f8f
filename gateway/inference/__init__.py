"""From images to results: batches, admission, deadlines, and the Backend that answers them."""
