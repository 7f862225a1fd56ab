from headrace_wire.cache_salt import cache_salt


def test_cache_salt_separates_tenants_and_needs_the_secret() -> None:
    salts = {cache_salt(secret, tenant) for secret in (b"1", b"2") for tenant in ("a", "b")}
    assert len(salts) == 4
    assert cache_salt(b"1", "a") in salts
