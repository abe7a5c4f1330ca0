"""What a proxy costs per request and per streamed event: ours and others', in turn inside one run."""
