"""Pages in a real browser; skipped where selenium, Chromium or its driver is missing."""

import os
import shutil

import pytest

import adfl_stats as ad

webdriver = pytest.importorskip("selenium.webdriver")
select = pytest.importorskip("selenium.webdriver.support.select")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="wants Chromium and chromedriver")

BAD = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER, env=os.environ | {"TZ": "UTC"}))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    sim = ad.simulate.hospitals(seed=3, M=30, abnormal=6)
    frame = sim.frame()
    labels = [*sim.labels[:-1], BAD]
    frame["hospital"] = frame["hospital"].replace(sim.labels[-1], BAD)
    net = ad.networks.directed_circle(30, 4, labels=labels)
    model = ad.DecentralizedGLM.from_formula("readmitted ~ age + severity", frame, "hospital", net, "binomial")
    res = model.fit()
    return res, res.report(tmp_path_factory.mktemp("pages") / "fit.html")


@pytest.fixture
def page(browser, fit):
    size(browser, 1200)
    # Scrolling takes no time then.
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    browser.get(fit[1].as_uri())
    yield browser
    # No error, and nothing that the policy of contents had to refuse.
    assert [line for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []


def size(browser, width):
    shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)


def column(page, name):
    """The cells of a column of the clients' table, as they stand on the screen."""
    return page.execute_script(
        """const table = document.getElementById("client-table");
        const at = [...table.tHead.rows[0].cells].findIndex(head => head.textContent === arguments[0]);
        return [...table.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[at].textContent);""",
        name,
    )


def press(page, name):
    heads = page.find_elements("css selector", "#client-table thead button")
    button = next(head for head in heads if head.text == name)
    button.send_keys("\n")
    return button.find_element("xpath", "..").get_attribute("aria-sort")


def test_headers_sort_by_keyboard(page, fit):
    table = fit[0].clients()
    assert press(page, "score") == "ascending"
    scores = [float(text) for text in column(page, "score")]
    assert scores == sorted(scores)
    assert column(page, "hospital") == [str(name) for name in table["score"].sort_values().index]
    assert press(page, "score") == "descending"
    assert [float(text) for text in column(page, "score")] == scores[::-1]
    # Numbers written with exponents are numbers; what is missing comes last in both directions.
    for _ in range(2):
        direction = press(page, "weight")
        weights = [float(text) for text in column(page, "weight")]
        assert weights == sorted(weights, reverse=direction == "descending")
        press(page, "noise")
    for _ in range(2):
        press(page, "verdict")
        words = [word == "" for word in column(page, "verdict")]
        assert words == sorted(words)
        assert 0 < sum(words) < 30
    sorted_heads = page.find_elements("css selector", '#client-table thead th:not([aria-sort="none"])')
    assert [head.text for head in sorted_heads] == ["verdict"]


def test_search_and_choice_show_some_clients(page, fit):
    search = page.find_element("id", "client-search")
    label = fit[0].record.labels[7]
    search.send_keys(str(label).lower())
    assert column(page, "hospital") == [label]
    assert page.find_element("id", "client-count").text == "1 of 30 rows"
    search.clear()
    search.send_keys("<script>")
    assert column(page, "hospital") == [BAD]
    search.clear()
    search.send_keys("x")
    search.send_keys("\b")
    assert len(column(page, "hospital")) == 30
    select.Select(page.find_element("id", "client-show")).select_by_value("k0")
    weights = fit[0].client_weights
    assert set(column(page, "hospital")) == set(weights.index[weights < 0.1].astype(str))


def test_no_label_runs(page):
    assert page.title != "taken"
    assert page.execute_script("return document.scripts.length") == 2


def test_marks_speak_by_pointer_and_by_keyboard(page, fit):
    labels = fit[0].record.labels
    tip = page.find_element("id", "tip")
    mark = page.find_element("css selector", '#network [data-c="3"]')
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", mark)
    webdriver.ActionChains(page).move_to_element(mark).perform()
    assert tip.is_displayed()
    assert tip.text.startswith(f"{labels[3]}: weight")
    # It hears four clients, and four hear it, by edges that go one way.
    strokes = (
        "return ['hears', 'heard'].map(k => document.querySelector('.edge.' + k).getAttribute('d').split('M').length)"
    )
    assert page.execute_script(strokes) == [5, 5]
    assert "on" in page.find_element("id", "client-3").get_attribute("class")
    drawing = page.find_element("css selector", "#score-plot .frame > svg")
    page.execute_script("arguments[0].focus()", drawing)
    keys = webdriver.ActionChains(page)
    keys.send_keys(webdriver.Keys.ARROW_LEFT).perform()
    worst = fit[0].clients()["score"].idxmax()
    assert tip.text.startswith(f"{worst}: score")
    keys.send_keys(webdriver.Keys.ENTER).perform()
    row = page.switch_to.active_element
    assert row.find_element("css selector", "th").text == str(worst)
    webdriver.ActionChains(page).send_keys(webdriver.Keys.ESCAPE).perform()
    assert not tip.is_displayed()


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_page_fits_the_window(page, width):
    size(page, width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    # Drawings are in sight as a whole, and so are the letters of their axes.
    outside = """return [...document.querySelectorAll("figure .frame > svg")].filter(drawing => {
        const frame = drawing.parentNode.getBoundingClientRect();
        return [drawing, ...drawing.querySelectorAll("text")].some(part => {
            const box = part.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1;
        });
    }).map(drawing => drawing.closest("figure").id)"""
    assert page.execute_script(outside) == []


def luminance(page, selector):
    """The luminances of text and background of an element, from their colours."""
    text = page.execute_script(
        """const found = getComputedStyle(document.querySelector(arguments[0]));
        return [found.color, getComputedStyle(document.body).backgroundColor];""",
        selector,
    )
    values = []
    for colour in text:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        values.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return values


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_in_light_and_dark(page, scheme):
    """Contrasts of at least 4.5, as WCAG 2.1 wants of texts."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.refresh()
    dark = luminance(page, "body")[1] < 0.5
    assert dark == (scheme == "dark")
    selectors = ("body", "figcaption", "caption", "nav a", ".holds", ".indicative", ".unknown", ".clients .k0 th")
    for selector in selectors:
        low, high = sorted(luminance(page, selector))
        assert (high + 0.05) / (low + 0.05) >= 4.5, selector
    button = page.find_element("id", "theme")
    assert button.get_attribute("aria-pressed") == str(dark).lower()
    button.click()
    assert (luminance(page, "body")[1] < 0.5) != dark
    assert button.get_attribute("aria-pressed") == str(not dark).lower()


def test_paper_is_light_and_has_no_tools(page):
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert luminance(page, "body")[1] > 0.9
    assert not page.find_element("id", "theme").is_displayed()
    assert not page.find_element("css selector", "nav").is_displayed()


def test_page_of_a_network_has_no_errors(page, tmp_path):
    path = ad.check_network(ad.networks.scale_free(40, 2, seed=1)).report(tmp_path / "net.html")
    page.get(path.as_uri())
    assert len(column(page, "client")) == 40
    assert press(page, "influence") == "ascending"


def test_page_of_a_study_sorts(page, tmp_path):
    sizes = {"M": 20, "n": 40, "p": 2}
    study = ad.Study(["DFL", "local"], shares=[0, 0.2], sizes=sizes, replicates=2, inference=False).run()
    page.get(study.report(tmp_path / "study.html").as_uri())
    heads = page.find_elements("css selector", "#setting-table thead button")
    button = next(head for head in heads if head.text == "mse")
    button.send_keys("\n")
    cells = page.find_elements("css selector", f"#setting-table tbody td:nth-child({heads.index(button) + 1})")
    shown = [float(cell.text) for cell in cells]
    assert shown == sorted(shown)
    assert len(shown) == 4
