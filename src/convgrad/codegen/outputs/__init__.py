"""What becomes of sums: results, weights gradients, bias gradients."""
