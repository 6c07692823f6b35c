import pytest


@pytest.fixture(autouse=True)
def own_folders(request, tmp_path, monkeypatch):
    """Every test starts with an empty cache, and finds an empty folder in `self.folder`."""
    monkeypatch.setenv('HEED_CACHE', str(tmp_path / 'cache'))
    request.instance.folder = tmp_path / 'own'
    request.instance.folder.mkdir()
