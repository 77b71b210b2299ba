"""What runs cost on DynamoDB and S3: units as AWS documents them, prices as of one date."""
