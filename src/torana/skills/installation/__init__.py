"""Installation of skills: sources, archives, staging and the installer."""
