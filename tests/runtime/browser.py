"""A real browser for tests of pages, where one is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        missing = "chromium and chromedriver are not here (Debian: apt-get install chromium chromium-driver)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield session
    session.quit()


def show(browser: Any, address: str, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    browser.get(address)
