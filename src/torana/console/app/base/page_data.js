/** The values that the gateway wrote into the page: `{ config, texts }`. */
const { config, texts } = JSON.parse(document.getElementById("page-data").textContent);
export { config, texts };
