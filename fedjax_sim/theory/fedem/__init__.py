"""The theory of FedEM and VR-FedEM."""
