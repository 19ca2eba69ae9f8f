"""One upload, many images: frames of animations and videos, and masked copies for explanations."""
