"""The plug-ins that come with the gateway. Each imports the gateway, and none imports another one."""
