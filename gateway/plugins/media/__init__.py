"""One upload, many images: frames of animations, and masked copies for explanations."""
