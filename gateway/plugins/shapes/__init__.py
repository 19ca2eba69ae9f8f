"""The response formats of other services, and the JSON body of Hugging Face."""
