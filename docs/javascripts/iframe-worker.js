// A browser starts no worker from a file: let search run in a frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.onload = () => {
        this.scope = frame.contentWindow
        this.waiting.forEach(data => this.postMessage(data))
      }
      window.fromWorker = data => this.dispatchEvent(new MessageEvent("message", { data }))
      frame.srcdoc = `<script>
        postMessage = parent.fromWorker
        importScripts = (...urls) => Promise.all(urls.map(url => new Promise(done => {
          document.head.append(Object.assign(document.createElement("script"), { src: url, onload: done }))
        })))
      </script><script src="${url}"></script>`
      document.head.append(frame)
    }

    postMessage(data) {
      if (!this.scope) this.waiting.push(data)
      else this.scope.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
