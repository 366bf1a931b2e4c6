-- nothing here

